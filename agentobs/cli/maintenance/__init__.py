"""Commands that check and maintain a home."""
