"""The same placements, schedules and plans at a thousand machines."""
