-- list_standing: those of some sequences in which a job stands: one that has not ended, or an abandoned one for which its sequence waits.
-- Fence: none (reads; the caller has locked the sequences by an earlier statement).
-- Rows: one per sequence.
-- Clock: none.
SELECT w.sequence
FROM unnest(%(sequences)s::text[]) AS w (sequence)
WHERE (
    SELECT true
    FROM pgjobs_job AS j
    WHERE j.sequence = w.sequence
      AND j.sequence IS NOT NULL
      AND (j.finished_at IS NULL OR (j.outcome = 'abandoned' AND j.flow & 128 = 0))
    LIMIT 1
) IS NOT NULL
