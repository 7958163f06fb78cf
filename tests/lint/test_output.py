"""The formats: JSON and SARIF as their readers expect them, GitHub's escapes, fingerprints that outlive inserted lines."""

import json

from surestep.lint.engine import Selection, check_file
from surestep.lint.output import FORMATS, Report

TEXT = "import torch_xla.core.xla_model as xm\nxm.mark_step()\n"


def report(text=TEXT, path="some, dir/a%b.py"):
    checked = check_file(path, text.encode(), Selection())
    return Report([(checked.source, finding) for finding in checked.findings], [("broken.py", "can't be parsed: x\ny")], 2)


def test_text():
    first, second, *_, last = FORMATS["text"](report()).splitlines()
    assert first.startswith("some, dir/a%b.py:2:1: XLA901 [*] warning: `torch_xla.core.xla_model.mark_step` is replaced")
    assert second == "broken.py: can't be parsed: x"
    assert last == "1 found, 2 files checked, 1 couldn't be checked. Fixable [*]: 1 with --fix."


def test_json():
    found, broken = json.loads(FORMATS["json"](report()))
    assert (found["code"], found["name"], found["severity"], found["filename"]) == (
        "XLA901",
        "deprecated-name",
        "warning",
        "some, dir/a%b.py",
    )
    assert (found["location"], found["end_location"]) == ({"row": 2, "column": 1}, {"row": 2, "column": 13})
    assert found["fix"]["applicability"] == "safe"
    assert {"content": "torch_xla.sync", "location": {"row": 2, "column": 1}, "end_location": {"row": 2, "column": 13}} in found["fix"][
        "edits"
    ]
    assert (broken["code"], broken["filename"]) == (None, "broken.py")


def test_github():
    found, broken = FORMATS["github"](report()).splitlines()
    assert found.startswith("::warning title=XLA901,file=some%2C dir/a%25b.py,line=2,col=1,endLine=2,endColumn=13::`torch_xla")
    assert broken == "::error file=broken.py::can't be parsed: x%0Ay"


def test_sarif():
    log = json.loads(FORMATS["sarif"](report()))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    (rule,) = run["tool"]["driver"]["rules"]
    (result,) = run["results"]
    assert (rule["id"], result["ruleId"], result["ruleIndex"], result["level"]) == ("XLA901", "XLA901", 0, "warning")
    location = result["locations"][0]["physicalLocation"]
    assert location["region"] == {"startLine": 2, "startColumn": 1, "endLine": 2, "endColumn": 13}
    assert location["artifactLocation"] == {"uri": "some%2C%20dir/a%25b.py", "uriBaseId": "%SRCROOT%"}
    assert result["fixes"][0]["artifactChanges"][0]["replacements"]
    assert run["invocations"][0]["executionSuccessful"] is False


def test_fingerprints_outlive_inserted_lines_and_differ_for_the_same_line_twice():
    def fingerprints(text):
        return [
            result["partialFingerprints"]["ruleAndLine/v1"] for result in json.loads(FORMATS["sarif"](report(text)))["runs"][0]["results"]
        ]

    assert fingerprints(TEXT) == fingerprints(TEXT.replace("xm.mark", "\n# more\nxm.mark"))
    assert len(set(fingerprints(TEXT + "xm.mark_step()\n"))) == 2
