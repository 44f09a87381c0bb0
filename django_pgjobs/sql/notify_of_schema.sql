-- notify_of_schema: send notifications that say which schema they are of, as workers for many schemas need it.
-- Fence: none (writes nothing).
-- Rows: one per notification, no content.
-- Clock: none.
SELECT pg_notify(
    n.channel,
    CASE
        WHEN n.channel = 'pgjobs' THEN concat(n.payload, '@', coalesce(nullif(%(schema)s::text, ''), current_schema()))
        ELSE n.payload
    END
)
FROM unnest(%(channels)s::text[], %(payloads)s::text[]) AS n (channel, payload)
