"""The tests in `on_driver` belong into processes that find the test driver; `test_on_driver.py` starts those."""

import os

from tests.helpers.cuda_driver import FOLDER_VARIABLE

collect_ignore = [] if FOLDER_VARIABLE in os.environ else ["on_driver"]
