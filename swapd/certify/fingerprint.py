def collect_fingerprint() -> str:
    return "temporary"
