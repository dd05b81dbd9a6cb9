"""Commands that export, import and bundle sessions."""
