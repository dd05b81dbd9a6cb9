"""Signatures of requests to AWS (Signature Version 4), made again for the address to which the proxy sends a request.

A client signs the host and the path of the URL that it uses, so its signature is not valid for another URL. The proxy
cannot change a signature, because it does not know the secret key of the client; with the user's own credentials, it
can sign the request again.
"""

from __future__ import annotations

import re

import httpx2
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import get_session

from agentobs.errors import UsageError

_SCOPE = re.compile(r"Credential=[^/,\s]+/\d{8}/([a-z0-9-]+)/([a-z0-9-]+)/aws4_request")
_SIGNATURE = frozenset(
    ("authorization", "x-amz-date", "x-amz-security-token", "x-amz-content-sha256")
)
"""The headers that belong to a signature."""


class AwsSigner:
    """Signs requests with the credentials that AWS's own tools would use: variables, profile, role."""

    def __init__(self) -> None:
        """Find the credentials.

        Raises:
            UsageError: there are none.
        """
        try:
            self._credentials = get_session().get_credentials()
        except (BotoCoreError, ClientError) as error:
            raise UsageError(
                f"the AWS credentials cannot be read: {str(error)[:200]}", where="--sign-aws"
            ) from error
        if self._credentials is None:
            raise UsageError(
                "no AWS credentials were found",
                where="--sign-aws",
                todo="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
            )

    def __call__(self, request: httpx2.Request) -> httpx2.Request:
        """Return a signed request with a new signature for its URL, in the region and for the service of the old one.

        Expired credentials are renewed, which can take seconds.

        Raises:
            ValueError: the request has no valid signature, or the credentials cannot be renewed.
        """
        scope = _SCOPE.search(request.headers.get("authorization", ""))
        if scope is None:
            raise ValueError("the signature does not name a region and a service")
        named = AWSRequest(
            method=request.method,
            url=str(request.url),
            headers={"content-type": request.headers.get("content-type", "application/json")},
            data=request.content,
        )
        try:
            credentials = self._credentials.get_frozen_credentials()
            SigV4Auth(credentials, scope[2], scope[1]).add_auth(named)
        except (BotoCoreError, ClientError) as error:  # AWS may refuse a role or a session
            raise ValueError(f"the AWS credentials cannot be used: {str(error)[:200]}") from error
        kept = [pair for pair in request.headers.multi_items() if pair[0] not in _SIGNATURE]
        made = {name.lower(): str(value) for name, value in named.headers.items()}
        headers = [pair for pair in kept if pair[0] not in made] + list(made.items())
        return httpx2.Request(
            request.method,
            request.url,
            headers=headers,
            content=request.content,
            extensions=request.extensions,
        )
