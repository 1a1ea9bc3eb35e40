"""`python -m swapd`."""

from swapd.cli import main

if __name__ == "__main__":
    main(prog_name="swapd")
