"""What is particular to each SDK: where its HTTP clients are, and how it is kept from repeating what we gave up on."""
