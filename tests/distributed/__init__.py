"""Training on several processes: DDP, FSDP2, accelerate, collectives. Each test runs on two
processes at once.
"""
