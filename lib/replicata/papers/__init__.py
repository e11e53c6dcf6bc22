"""One room per paper; every room has the same shape."""
