"""The continuous batch generator. It knows no Redis."""
