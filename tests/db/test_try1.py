import pytest
from django.db import connection
from django_pgjobs import job, Batch
from django_pgjobs.models import Job, Gate, Link
from django_pgjobs.testing import run_jobs
pytestmark = pytest.mark.django_db(transaction=True)
ran=[]
@job(name="try.work")
def work(n: int) -> int:
    ran.append(n)
    if n == 13: raise ValueError("unlucky")
    return n
@job(name="try.after", max_attempts=1)
def after(what: str) -> None:
    ran.append(what)
@job(name="try.failing", max_attempts=1)
def failing() -> None:
    raise ValueError("x")

def test_batch():
    ran.clear()
    with Batch("b", succeeded=after.bind("ok"), failed=after.bind("bad"), settled=after.bind("done")) as batch:
        batch.add_many(work.bind(n) for n in range(5))
        assert batch.figures.pending == 5
    summary = run_jobs()
    print(summary, ran)
    print(Job.objects.values_list("name","state","error","cancel_reason"))
    assert ran == [0,1,2,3,4,"ok","done"]
    assert batch.job.state == "succeeded"

def test_failing():
    ran.clear()
    with Batch("b", succeeded=after.bind("ok"), failed=after.bind("bad"), settled=after.bind("done")) as batch:
        batch.add_many([work.bind(1), failing.bind()])
    run_jobs()
    for row in Job.objects.values_list("id","name","state","error","cancel_reason"): print(row)
    assert ran == [1,"bad","done"]

def test_after():
    ran.clear()
    a = work.register(1)
    b = failing.register()
    c = after.using(after=[a]).register("c")
    d = after.using(after=[a, b]).register("d")
    e = after.using(after=[b], when="failed").register("e")
    f = after.using(after=[a, b], when="settled").register("f")
    run_jobs()
    for row in Job.objects.order_by("id").values_list("id","name","state","error","cancel_reason"): print(row)
    assert sorted(ran[1:]) == ["c","e","f"]
    g = after.using(after=[b]).register("g")
    assert g.ending == "cancelled"
    run_jobs()
    g.refresh_from_db(); assert g.state=="cancelled"; print(g.cancel_reason)

def test_cancel():
    ran.clear()
    with Batch("b", settled=after.bind("done")) as batch:
        batch.add_many(work.bind(n) for n in range(5))
    print(batch.job.cancel(by="me", reason="no"))
    run_jobs()
    for row in Job.objects.order_by("id").values_list("id","name","state","error","cancel_reason"): print(row)
    assert ran == ["done"]
    print(batch.figures)
