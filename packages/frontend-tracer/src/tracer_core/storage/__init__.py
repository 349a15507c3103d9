"""Files that outlive a process: the cache folder and its entries, archives; parameters whose memory was
released.
"""
