"""The option with which requests to AWS are signed again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agentobs.cli.terminal.optional_packages import needed_packages

if TYPE_CHECKING:
    from agentobs.proxy.aws_signing import AwsSigner

sign_aws_option = click.option(
    "--sign-aws",
    "signs_aws",
    is_flag=True,
    help="Sign requests to Bedrock again with your AWS credentials, because AWS rejects requests that are signed for "
    "the proxy.",
)


def aws_signer(*, is_wanted: bool) -> AwsSigner | None:
    """Return a signer that signs requests to AWS again; None if it is not wanted.

    Raises:
        UsageError: botocore is not installed, or there are no credentials.
    """
    if not is_wanted:
        return None
    with needed_packages("--sign-aws", "aws"):
        from agentobs.proxy.aws_signing import AwsSigner
    return AwsSigner()
