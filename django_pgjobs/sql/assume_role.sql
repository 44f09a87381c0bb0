-- assume_role: act as another role in this session.
-- Fence: none (session).
-- Rows: none.
-- Clock: none.
SET ROLE %(role)s
