"""The formats: JSON and SARIF as their readers expect them, GitHub's escapes, fingerprints that outlive inserted lines."""

import json

from surestep.lint.engine import Selection, check_file
from surestep.lint.output import FORMATS, Report
from surestep.lint.rules import RULES

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


# What the SARIF 2.1.0 schema says of the objects that are written: their properties, and those that have to be there.
SCHEMA = {
    "log": ({"version": str, "$schema": str, "runs": ["run"]}, {"version", "runs"}),
    "run": ({"tool": "tool", "invocations": ["invocation"], "columnKind": str, "results": ["result"]}, {"tool"}),
    "tool": ({"driver": "driver"}, {"driver"}),
    "driver": ({"name": str, "rules": ["rule"]}, {"name"}),
    "rule": (
        {
            "id": str,
            "name": str,
            "shortDescription": "text",
            "fullDescription": "text",
            "help": "markdown",
            "defaultConfiguration": "configuration",
        },
        {"id"},
    ),
    "text": ({"text": str}, {"text"}),
    "markdown": ({"text": str, "markdown": str}, {"text"}),
    "configuration": ({"level": str}, set()),
    "invocation": ({"executionSuccessful": bool, "toolExecutionNotifications": ["notification"]}, {"executionSuccessful"}),
    "notification": ({"level": str, "message": "text"}, {"message"}),
    "result": (
        {
            "ruleId": str,
            "ruleIndex": int,
            "level": str,
            "message": "text",
            "locations": ["location"],
            "fixes": ["fix"],
            "partialFingerprints": dict,
        },
        {"message"},
    ),
    "location": ({"physicalLocation": "physical"}, set()),
    "physical": ({"artifactLocation": "artifact", "region": "region"}, {"artifactLocation"}),
    "artifact": ({"uri": str, "uriBaseId": str}, set()),
    "region": ({"startLine": int, "startColumn": int, "endLine": int, "endColumn": int}, set()),
    "fix": ({"artifactChanges": ["change"]}, {"artifactChanges"}),
    "change": ({"artifactLocation": "artifact", "replacements": ["replacement"]}, {"artifactLocation", "replacements"}),
    "replacement": ({"deletedRegion": "region", "insertedContent": "text"}, {"deletedRegion"}),
}
VALUES = {"level": {"none", "note", "warning", "error"}, "columnKind": {"utf16CodeUnits", "unicodeCodePoints"}, "version": {"2.1.0"}}


def hold_to_schema(value, kind):
    """The value has the kind's properties and no others, with values of their types."""
    if isinstance(kind, list):
        assert isinstance(value, list)
        for item in value:
            hold_to_schema(item, kind[0])
    elif isinstance(kind, str):
        properties, required = SCHEMA[kind]
        assert required <= value.keys() <= properties.keys(), (kind, value)
        for name, item in value.items():
            hold_to_schema(item, properties[name])
            assert item in VALUES.get(name, {item} if isinstance(item, str) else [item])
            assert kind != "region" or item >= 1
    else:
        assert type(value) is kind


def test_sarif_is_as_its_schema_says():
    texts = [TEXT, *(text for rule in RULES.values() for text in rule.invalid)]
    checked = [check_file(f"folder/a{number} b.py", text.encode(), Selection()) for number, text in enumerate(texts)]
    findings = [(one.source, finding) for one in checked for finding in one.findings]
    log = json.loads(FORMATS["sarif"](Report(findings, [("broken.py", "can't be parsed")], len(texts))))
    hold_to_schema(log, "log")
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(rules) == len(set(rules)) > 30
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert all(type(value) is str for value in result["partialFingerprints"].values())
        for fix in result.get("fixes", ()):
            assert all(change["replacements"] for change in fix["artifactChanges"])
        uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert " " not in uri and not uri.startswith("/")


def test_fingerprints_outlive_inserted_lines_and_differ_for_the_same_line_twice():
    def fingerprints(text):
        return [
            result["partialFingerprints"]["ruleAndLine/v1"] for result in json.loads(FORMATS["sarif"](report(text)))["runs"][0]["results"]
        ]

    assert fingerprints(TEXT) == fingerprints(TEXT.replace("xm.mark", "\n# more\nxm.mark"))
    assert len(set(fingerprints(TEXT + "xm.mark_step()\n"))) == 2
