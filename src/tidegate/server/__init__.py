"""Local web page of `tidegate serve`: the limits of the active programs of this user, beside their use.

Theory of operation. A sampler reads the counter files of all live runs once a second, so the governed programs do
nothing for the page. The browser fetches the samples that it lacks, one request at a time. `AccessPolicy` refuses each
request that does not come from the page itself.
"""
