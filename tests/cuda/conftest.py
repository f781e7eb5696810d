"""The tests in `on_driver` belong into processes of their own: `test_on_driver.py` starts those on the test driver,
`test_on_device.py` those on a device.
"""

import os

from tests.helpers.cuda_driver import DEVICE_VARIABLE, FOLDER_VARIABLE

collect_ignore = [] if {FOLDER_VARIABLE, DEVICE_VARIABLE} & set(os.environ) else ["on_driver"]
