"""Run lm-evaluation-harness's own client in a process of its own: `driver.py PLAN`, results as JSON.

The plan is a list of calls: how the model is made, what is asked of it, and with what.
"""

import json
import sys

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI


def asked(kind, rows):
    if kind.startswith("_"):  # ids, which the harness has made of texts already
        return [(None, *row) for row in rows]
    return [Instance(kind, {}, tuple(row), index) for index, row in enumerate(rows)]


def main():
    results = []
    for call in json.load(sys.stdin):
        model = LocalCompletionsAPI(**call["model"])
        results.append(getattr(model, call["kind"])(asked(call["kind"], call["rows"])))
    json.dump(results, sys.stdout)


main()
