"""Parts: masks, kernels, attention, feed-forward, positions, residual wiring, vocabulary losses. They take plain
arguments and never see a config.
"""
