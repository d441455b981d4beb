"""For `panel serve widgets/apps/dashboard.py --args RUN`; `gemini-lab serve RUN` also guards it."""
# ruff: noqa: INP001 - a script, in no package

import sys

from gemini_lab_widgets.dashboard import VISITORS
from gemini_lab_widgets.library import Library
from gemini_lab_widgets.page import visit
from gemini_lab_widgets.serve import log_of

visit(Library(log_of((*sys.argv[1:], "latest")[0])), set(), most=VISITORS)
