from django_pgjobs import store
from tests.plugins.fix_db import *
from tests.db.test_hot import counters, JOBS
def test_prof(raw):
    for ff in (50,45,42,40):
        for size,timeout,batch in ((1,None,500),(1,1800.0,500),(1,1800.0,20),(130,1800.0,500),(400,1800.0,500),(1000,1800.0,500)):
            raw.query(f"ALTER TABLE pgjobs_job SET (fillfactor={ff})")
            raw.query("TRUNCATE pgjobs_job, pgjobs_claim")
            register(10000, timeout_seconds=timeout, payload='{"args": ["%s"], "kwargs": {}}' % ("x"*size))
            b=counters(raw)
            while claim(raw,batch).ids: pass
            a=counters(raw)
            print(ff,size,timeout,batch,(a[1]-b[1])/(a[0]-b[0]), raw.value("select pg_relation_size('pgjobs_job')")//1024)
    raw.query(f"ALTER TABLE pgjobs_job SET (fillfactor=50)")
