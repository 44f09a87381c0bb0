-- The tables of django-tasks-db 0.13.0, as its own migrations make them.

CREATE TABLE django_tasks_database_dbtaskresult (
    id uuid NOT NULL,
    status character varying(10) NOT NULL,
    args_kwargs jsonb NOT NULL,
    priority integer NOT NULL,
    task_path text NOT NULL,
    queue_name character varying(32) NOT NULL,
    backend_name character varying(32) NOT NULL,
    run_after timestamp with time zone NOT NULL,
    enqueued_at timestamp with time zone NOT NULL,
    finished_at timestamp with time zone,
    started_at timestamp with time zone,
    return_value jsonb,
    exception_class_path text CONSTRAINT django_tasks_database_dbtaskresul_exception_class_path_not_null NOT NULL,
    traceback text NOT NULL,
    worker_ids jsonb NOT NULL,
    CONSTRAINT priority_range CHECK (((priority >= '-100'::integer) AND (priority <= 100)))
);

ALTER TABLE ONLY django_tasks_database_dbtaskresult
    ADD CONSTRAINT django_tasks_database_dbtaskresult_pkey PRIMARY KEY (id);

CREATE INDEX django_task_backend_071754_idx ON django_tasks_database_dbtaskresult USING btree (backend_name);

CREATE INDEX django_task_queue_n_99c321_idx ON django_tasks_database_dbtaskresult USING btree (queue_name);

CREATE INDEX tasks_db_new_ordering_idx ON django_tasks_database_dbtaskresult USING btree (status, priority DESC, run_after, enqueued_at) WHERE ((status)::text = 'READY'::text);

