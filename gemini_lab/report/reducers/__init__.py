"""The parts of `gemini_lab.report.reducer.RunReducer`, a file each: small, and free of I/O."""
