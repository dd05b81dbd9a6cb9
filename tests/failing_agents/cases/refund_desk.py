"""An agent on the raw SDK, sync; a tool returns an error result, and the agent reports a label."""

from tests.failing_agents.case import Case, Change, Edit
from tests.failing_agents.provider import Reply, Request, call, text


def answer(request: Request) -> Reply:
    order, refund = request.result("lookup_order"), request.result("issue_refund")
    if order is None:
        return [text("Let me look."), call("lookup_order", order_id="A-17")]
    amount = order.text.split("total ")[1].split()[0]
    if refund is None:
        return [call("issue_refund", order_id="A-17", amount=amount)]
    if refund.is_error:
        return [text("I am sorry, the refund did not work.")]
    return [text(f"Done: {refund.text}.")]


CASE = Case(
    name="refund_desk",
    shape="raw SDK, sync",
    tools="plain",
    failure="error result, fail(label)",
    run=("bot.py", "Refund order A-17, the mug was broken."),
    answer=answer,
    fails=r"the refund did not work",
    succeeds=r"Done: refunded 4190 cents",
    fixes=(
        Change(
            "the tool accepts a decimal comma",
            (Edit("bot.py", "float(amount) * 100", 'float(amount.replace(",", ".")) * 100'),),
            'assert not step.tool("issue_refund").is_error',
        ),
        Change(
            "the previous tool returns a decimal point",
            (Edit("bot.py", 'total = order["total"]', 'total = order["total"].replace(",", ".")'),),
            turn=1,
        ),
    ),
    wrong=(
        Change(
            "a renamed variable",
            (
                Edit("bot.py", "cents = round(float", "minor = round(float"),
                Edit("bot.py", 'f"refunded {cents} cents', 'f"refunded {minor} cents'),
            ),
        ),
        Change(
            "a different error text",
            (Edit("bot.py", "failed: {e}", "is out of order: {e!r}"),),
            only_with_assertion=True,
        ),
    ),
    named=r"could not convert string to float|issue_refund|refund-not-issued",
    turns=(2,),
    tampered=Change(
        "a changed return value",
        (Edit("bot.py", "return reply.content[-1].text", 'return "WRONG"'),),
    ),
    is_quick=True,
)
