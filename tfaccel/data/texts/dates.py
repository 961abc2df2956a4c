"""Dates in many formats and three languages, paired with their ISO 8601 form."""

import datetime
import random

MONTHS = {
    "en": [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ],
    "de": [
        "Januar",
        "Februar",
        "März",
        "April",
        "Mai",
        "Juni",
        "Juli",
        "August",
        "September",
        "Oktober",
        "November",
        "Dezember",
    ],
    "fr": [
        "janvier",
        "février",
        "mars",
        "avril",
        "mai",
        "juin",
        "juillet",
        "août",
        "septembre",
        "octobre",
        "novembre",
        "décembre",
    ],
}
DAYS = {
    "en": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
    "de": ["Montag", "Dienstag", "Mittwoch", "Donnerstag", "Freitag", "Samstag", "Sonntag"],
    "fr": ["lundi", "mardi", "mercredi", "jeudi", "vendredi", "samedi", "dimanche"],
}
# Numeric dates differ by separator: with dots the day comes first, with slashes the month (or the year).
_FORMS = (
    ("en", "{d} {month} {y}"),
    ("en", "{month} {d}, {y}"),
    ("en", "{month} {nth}, {y}"),
    ("en", "{day}, {month} {d}, {y}"),
    ("en", "{day} {nth} {month} {y}"),
    ("en", "the {nth} of {month}, {y}"),
    ("en", "{d} {mon} {y}"),
    ("en", "{mon} {d} {y}"),
    ("en", "{d:02}-{mon}-{y}"),
    ("en", "{m}/{d}/{y}"),
    ("en", "{m:02}/{d:02}/{y}"),
    ("en", "{y}/{m:02}/{d:02}"),
    ("en", "{y}{m:02}{d:02}"),
    ("de", "{d}.{m}.{y}"),
    ("de", "{d:02}.{m:02}.{y}"),
    ("de", "{d}. {month} {y}"),
    ("de", "{day}, den {d}. {month} {y}"),
    ("fr", "{d} {month} {y}"),
    ("fr", "le {day} {d} {month} {y}"),
)
_FIRST, _LAST = datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)


def date_pairs(num_pairs: int, *, seed: int) -> list[tuple[str, str]]:
    """Distinct dates from 1900 to 2099, each in a random format and in ISO format.

    Example:
        >>> date_pairs(2, seed=0)
        [('April 1, 2038', '2038-04-01'), ('Montag, den 5. Dezember 2050', '2050-12-05')]
    """
    generator = random.Random(seed)
    days = generator.sample(range((_LAST - _FIRST).days + 1), num_pairs)
    dates = [_FIRST + datetime.timedelta(days=number) for number in days]
    return [(write_date(date, generator), date.isoformat()) for date in dates]


def write_date(date: datetime.date, generator: random.Random) -> str:
    """A date in one of 19 formats; one in four is all uppercase or all lowercase."""
    language, form = generator.choice(_FORMS)
    month, day = MONTHS[language][date.month - 1], DAYS[language][date.weekday()]
    text = form.format(d=date.day, m=date.month, y=date.year, month=month, mon=month[:3], day=day, nth=_nth(date.day))
    change = generator.randrange(8)
    return text.upper() if change == 0 else text.lower() if change == 1 else text


def _nth(number: int) -> str:
    ending = "th" if 10 < number < 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
