"""Packages that were written for ONNX Runtime give the same answers when they import graphpool instead.

Each test runs a package's own code in two processes, which differ in what ``import onnxruntime`` finds. Where a package
is not installed its test is skipped; `.ci/run` installs them.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.native

PROGRAM = """
import json, sys
import numpy as np

def image(text, height, width):
    import cv2
    pixels = np.full((height, width, 3), 255, np.uint8)
    cv2.putText(pixels, text, (10, height * 2 // 3), cv2.FONT_HERSHEY_SIMPLEX, 1.4, (0, 0, 0), 2)
    return pixels

def magika():
    from magika import Magika
    known = Magika()
    contents = ["import os\\nprint(os.name)\\n" * 8, "<html><body><p>hello</p></body></html>" * 4, '{"a": [1, 2]}' * 9,
                "#include <stdio.h>\\nint main(void) { return 0; }\\n" * 5, "select * from t where a = 1;\\n" * 10]
    found = [known.identify_bytes(content.encode()) for content in contents]
    return [(each.output.label, round(each.score, 2)) for each in found]

def rapidocr_onnxruntime():
    from rapidocr_onnxruntime import RapidOCR
    read = RapidOCR()
    found = []
    for text in ("graphpool", "Memory 42", "oneDNN"):
        lines, _ = read(image(text, 120, 480))
        found += [(text, round(float(score), 2), np.round(box).tolist()) for box, text, score in lines]
    return found

def ddddocr():
    import cv2
    from ddddocr import DdddOcr
    found = []
    for old in (False, True):
        read = DdddOcr(show_ad=False, old=old)
        for text in ("8a3k", "pool", "17x9"):
            found.append(read.classification(cv2.imencode(".png", image(text, 64, 160))[1].tobytes()))
    return found

package, engine = sys.argv[1:]
if engine == "graphpool":
    import graphpool.onnx
    sys.modules["onnxruntime"] = graphpool.onnx
print(json.dumps(globals()[package]()))
"""


@pytest.mark.parametrize("package", ["magika", "rapidocr_onnxruntime", "ddddocr"])
def test_a_package_gives_the_same_answers(package: str) -> None:
    for needed in ("onnxruntime", package):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    answers = []
    for engine in ("onnxruntime", "graphpool"):
        command = [sys.executable, "-W", "ignore", "-c", PROGRAM, package, engine]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout.splitlines()[-1]))
    assert len(answers[0]) >= 3
    assert answers[1] == answers[0]
