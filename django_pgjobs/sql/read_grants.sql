-- read_grants: the rights on our tables on the search path that some roles lack; an empty name is the role of this connection.
-- Fence: none (reads).
-- Rows: one per role and object with rights that are missing: role, kind of object, object and rights, as GRANT takes them.
-- Clock: none.
WITH roles AS (
    SELECT CASE WHEN r.name = '' THEN current_user ELSE r.name::name END AS name
    FROM unnest(%(roles)s::text[]) AS r (name)
), path AS (
    -- current_schemas() would leave out those that this role may not use.
    SELECT m.number, CASE WHEN left(m.token[1], 1) = '"' THEN replace(substr(m.token[1], 2, length(m.token[1]) - 2), '""', '"') ELSE lower(m.token[1]) END AS name
    FROM regexp_matches(current_setting('search_path'), '"(?:[^"]|"")*"|[^",\s]+', 'g') WITH ORDINALITY AS m (token, number)
), home AS (
    SELECT n.oid AS id, CASE WHEN %(is_bare)s::boolean THEN '' ELSE quote_ident(n.nspname) || '.' END AS prefix
    FROM path AS p
    JOIN pg_namespace AS n ON n.nspname = CASE p.name WHEN '$user' THEN current_user ELSE p.name::name END
    JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = 'pgjobs_job' AND c.relkind IN ('r', 'p')
    ORDER BY p.number
    LIMIT 1
), wanted AS (
    SELECT t.kind, t.name, t.id, t.rights
    FROM home,
    LATERAL (
        SELECT 'SCHEMA' AS kind, quote_ident(n.nspname) AS name, n.oid AS id, ARRAY['USAGE'] AS rights
        FROM pg_namespace AS n
        WHERE n.oid = home.id
        UNION ALL
        SELECT 'TABLE', home.prefix || quote_ident(c.relname), c.oid,
            CASE c.relname WHEN 'django_migrations' THEN ARRAY['SELECT'] ELSE ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE'] END
        FROM pg_class AS c
        WHERE c.relnamespace = home.id AND c.relkind IN ('r', 'p') AND c.relname = ANY (%(tables)s::text[])
        UNION ALL
        SELECT 'SEQUENCE', home.prefix || quote_ident(c.relname), c.oid, ARRAY['USAGE']
        FROM pg_class AS c
        WHERE c.relnamespace = home.id AND c.relname = 'pgjobs_job_id_seq'
        UNION ALL
        SELECT 'FUNCTION', 'pg_control_system()', 'pg_control_system()'::regprocedure, ARRAY['EXECUTE']
    ) AS t
)
SELECT quote_ident(r.name), w.kind, w.name, string_agg(p.name, ', ' ORDER BY p.number)
FROM roles AS r
CROSS JOIN wanted AS w
CROSS JOIN unnest(w.rights) WITH ORDINALITY AS p (name, number)
WHERE NOT CASE w.kind
    WHEN 'SCHEMA' THEN has_schema_privilege(r.name, w.id, p.name)
    WHEN 'TABLE' THEN has_table_privilege(r.name, w.id, p.name)
    WHEN 'SEQUENCE' THEN has_sequence_privilege(r.name, w.id, p.name)
    ELSE has_function_privilege(r.name, w.id, p.name)
END
GROUP BY r.name, w.kind, w.name
ORDER BY r.name, w.kind, w.name
