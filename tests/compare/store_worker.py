"""A worker of a store in a process of its own: SCRATCH URL OUT PAUSE UNIT."""

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from homespun.compare import cluster
from homespun.compare.store import Store

scratch, url, out, pause, unit = sys.argv[1:]
tempfile.tempdir = scratch
cluster.START = (sys.executable, str(Path(__file__).with_name("fake_training.py")))
cluster._PUBLISH = 0.02
run = Path(out, unit)
arguments = ["pretrain", "any", "train.batch_size=7", "--out", str(run), "--resume"]
log = run.parent / "logs" / f"{run.name}.log"
outcome = cluster.run_command(
    arguments, str(log), {"FAKE_PAUSE": pause}, scratch, 1, version("homespun"), Store(url, Path(out))
)
assert outcome["why"] is None, outcome
