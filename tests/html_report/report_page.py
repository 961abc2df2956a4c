"""A report's page as tests read it: its elements, texts and scripts."""

import base64
import hashlib
import json
from html.parser import HTMLParser

from tfaccel import report as write_report


class Page(HTMLParser):
    """The elements of a page as (tag, attributes), its texts, and the content of its scripts.

    Args:
        path: the file.
    """

    EMPTY = {"meta", "link", "img", "br", "circle", "line"}

    def __init__(self, path):
        super().__init__()
        self.elements, self.texts, self.scripts, self._open = [], [], [], []
        self.html = path.read_text(encoding="utf-8")
        self.feed(self.html)
        self.close()
        assert self._open == [], "elements that are not closed"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self._open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open[-1:] == ["script"]:
            self.scripts[-1] += data
        elif self._open[-1:] != ["style"] and data.strip():
            self.texts.append(" ".join(data.split()))

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self):
        return "\n".join(self.texts)

    @property
    def figures(self):
        return json.loads(self.scripts[0])

    @property
    def policy(self):
        """The Content Security Policy."""
        return next(one["content"] for one in self.all("meta") if one.get("http-equiv") == "Content-Security-Policy")


def digest(script):
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def written(tmp_path, *run_dirs, **options):
    """Writes a report of run directories; returns it and its page."""
    report = write_report(*run_dirs, output=tmp_path / "report.html", **options)
    return report, Page(report.path)
