"""One module a figure or comparison; notebooks, the command line and tests all call these."""
