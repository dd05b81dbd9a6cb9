"""Matching of live requests and questions with recorded exchanges."""
