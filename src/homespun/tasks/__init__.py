"""Fine-tuning tasks, one file each; `config` has their union."""
