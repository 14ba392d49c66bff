"""``python -m anisodiff``."""

from anisodiff.cli.main import run

if __name__ == "__main__":
    run()
