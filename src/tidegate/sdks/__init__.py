"""The particulars of each SDK: the place of its HTTP clients, and the stop of its retries after we gave up."""
