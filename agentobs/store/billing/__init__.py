"""The provider's usage and cost reports, reconciliation and price scenarios."""
