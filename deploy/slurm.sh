#!/bin/bash
# Sharded pretraining on the GPUs of several nodes, one torchrun agent a node. Arguments change settings:
#   sbatch --nodes=8 --export=ALL,SHARED=/shared deploy/slurm.sh train.budget.tokens=20B
#
# homespun is on the PATH of all nodes; SHARED is a folder that all of them see, with the corpus. After a worker has died,
# or a node other than the first is lost, the others go on from the last checkpoint with the same global batch. After the
# loss of the first node the requeued job does. SLURM calls a job that lost a node FAILED even if training is complete.
#SBATCH --job-name=homespun
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --requeue
#SBATCH --no-kill
#SBATCH --open-mode=append
set -euo pipefail

export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # restarts need a new store
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / SLURM_GPUS_ON_NODE))
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun --no-kill --kill-on-bad-exit=0 torchrun \
  --nnodes="1:$SLURM_JOB_NUM_NODES" --nproc-per-node="$SLURM_GPUS_ON_NODE" --max-restarts=3 \
  --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$first:29500" \
  -m homespun pretrain causal-mini data.corpus="$SHARED/corpus" train.parallel=auto train.batch_size=512 \
  --out "$SHARED/runs/$SLURM_JOB_NAME" --resume "$@"
