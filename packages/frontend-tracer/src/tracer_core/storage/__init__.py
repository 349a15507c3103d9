"""Files that outlive a process: the cache folder and its entries; parameters whose memory was
released.
"""
