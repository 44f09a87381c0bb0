import time
from django_pgjobs import store
from tests.plugins.fix_db import *
def test_prof(raw, db_connection):
    raw.query("TRUNCATE pgjobs_job")
    register(10000)
    T=time.perf_counter
    claims=[]
    t=T()
    for _ in range(20): claims.append(claim(raw,500))
    print("claim",T()-t)
    def tm(name,f):
        t=T(); f(); print(name, round(T()-t,3))
    c=iter(claims)
    for db_name, db in (("pins",raw),("nopins",db_connection(pins=False))):
      for _ in range(2):
        cl=next(c); tm(db_name+" cancel", lambda: store.cancel_jobs(db, cl.ids, mode="ask", by="anna", reason="late", with_callback=[]))
        cl=next(c); tm(db_name+" progress", lambda: store.write_progress(db, [(job, fence, '{"n": 1, "total": 10}') for job, fence in cl.fences()]))
        tm(db_name+" read_flags", lambda: store.read_flags(db, cl.fences()))
        tm(db_name+" read_fences", lambda: store.read_fences(db, cl.fences()))
        tm(db_name+" mark", lambda: store.mark_ending(db, cl.ends(outcome="abandoned"), AUTHOR, allowance_seconds=5))
        tm(db_name+" success", lambda: store.finalise_success(db, cl.ends(), AUTHOR))
        tm(db_name+" delete_claims", lambda: store.delete_claims(db, [str(cl.claim_id)]))
        cl=next(c); tm(db_name+" wish", lambda: store.release_wish(db, cl.ids))
        tm(db_name+" release", lambda: store.release_jobs(db, cl.ends(), AUTHOR))
        cl=next(c); tm(db_name+" retry", lambda: store.finalise_retry(db, cl.ends(delay=1.0,cause="failed",seconds=1.0,failure=FAILURE), AUTHOR))
