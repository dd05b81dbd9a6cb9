ALTER TABLE provider_tool_uses ADD COLUMN batch_result_id VARCHAR;
ALTER TABLE provider_tool_results ADD COLUMN batch_result_id VARCHAR;
COMMENT ON COLUMN provider_tool_uses.batch_result_id IS 'The keyed digest of the result of a batch that contains the call, as in usage; NULL for other calls.';
COMMENT ON COLUMN provider_tool_results.batch_result_id IS 'The keyed digest of the result of a batch that contains the result, as in usage; NULL for other results.';
COMMENT ON COLUMN provider_tool_uses.ordinal IS 'The position among the calls of the response that the provider runs, from 1; the results of a batch are one response.';
COMMENT ON COLUMN provider_tool_uses.requested_ns IS 'When the call appeared in the stream; when the response ended, if it was not streamed; when the program had fetched it, for the result of a batch. [ns since 1970 UTC]';
COMMENT ON COLUMN provider_tool_uses.use IS 'How many times the response, or the result of a batch, has called this tool, including this call. max_uses limits this number.';
COMMENT ON COLUMN provider_tool_uses.max_uses IS 'The maximum number of calls that the request declares; NULL without a limit, or if the session did not create the batch.';
COMMENT ON COLUMN provider_tool_results.result_ns IS 'When the result appeared in the stream; when the response ended, if it was not streamed; when the program had fetched it, for the result of a batch. [ns since 1970 UTC]';
