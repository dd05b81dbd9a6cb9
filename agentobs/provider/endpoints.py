"""Endpoints: the path of a request as a label of bounded variety."""

from __future__ import annotations

from agentobs.records.labels import Label

_PATHS = """
ack action_urls agents analytics anthropic api_keys approve apps archive artifacts batches bundles cancel
certificates chat claudeOrganization claude_code claude_tag complete compliance_settings configuration
connectors content cost cost_report count_tokens credentials deny deployment_runs deployments dreams effective
enrollment_url environments events external_keys federation_issuers federation_rules files heartbeat
installation_settings invites invoke invoke-with-response-stream locations managed_settings mcp_oauth_validate
me members memories memory_stores memory_versions messages model models oauth organizations pause permissions
plugin_marketplaces plugins poll projects publishers rate_limits rbac_group_default rbac_groups rbac_roles
redact regenerate_signing_secret resources results reveal_token rotate_token run service_accounts sessions
shares sign_out skills slack_channels slack_workspaces spend_limit_increase_requests spend_limits stats stop
stream summaries targets telemetry_destinations test threads token tunnels unpause uploads usage usage_report
user_cost_report user_profiles user_usage_report users v1 validate validate_archive validate_repository vaults
versions webhooks work workspace workspaces
"""
_PATH_WORDS = frozenset(_PATHS.split())
"""The words of the provider's paths, its own and those of Bedrock and Vertex (anthropic 2.12, resources and lib).
Whatever else stands in a path somebody chose: an id, a model, the name of a file."""


def endpoint(path: str) -> Label:
    """Return a path as a label of bounded variety: no query, `:id` for all but the provider's own words."""
    parts = path.partition("?")[0].split("/")
    told = [part if part in _PATH_WORDS or not part else ":id" for part in parts]
    return Label("/".join(told)[:128] or "/")
