"""The recovery protocol explored: random schedules of failures in modelled labs."""
