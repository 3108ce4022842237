"""Schedules for system cron, launchd and any other clock: each tick is done once."""
