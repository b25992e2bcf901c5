"""What holds for every test: nothing is fetched, and nothing is drawn on a screen."""

import os

# set before any library reads them, and inherited by the processes that tests start
os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "agg"
