"""Tables and texts go to standard output, whatever stands there at the time."""

import contextlib
import io

from tfaccel.reporting.tables import show_table, show_text


def test_table_is_aligned(capsys):
    show_table("Title", ["model", "bits"], [["a", "2.5"], ["a longer name", "10.25"]])
    assert capsys.readouterr().out.splitlines() == [
        "Title",
        "model           bits",
        "a                2.5",
        "a longer name  10.25",
    ]


def test_text_goes_where_output_is_sent(capsys):
    caught = io.StringIO()
    with contextlib.redirect_stdout(caught):
        show_text("one\ntwo")
    assert (caught.getvalue(), capsys.readouterr().out) == ("one\ntwo\n", "")
