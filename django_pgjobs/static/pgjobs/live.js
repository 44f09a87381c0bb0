/* Keeps parts of a page current: each 5 seconds it reads the page again and replaces what has data-live and an id.
   A part with data-live="cells" is a list with checkboxes: under the pointer no row moves, and new ones come last.
   It rests while the page is hidden, something is open, changed or focused in a part, or the user has paused it. */
"use strict";
(() => {
    const SECONDS = 5;
    const bar = document.querySelector("[data-live-bar]");
    if (!bar) return;
    const words = bar.dataset;
    const button = document.createElement("button");
    const late = document.createElement("span");
    let on = true, tag = null, busy = false, last = new Date();
    button.type = "button";
    button.className = "pgjobs-livebutton";
    late.setAttribute("role", "status");
    bar.append(" ", button, " ", late);
    bar.querySelector("[data-refresh]")?.remove();

    const show = () => {
        button.textContent = on ? words.on : words.off;
        button.setAttribute("aria-pressed", String(on));
    };
    const parts = () => document.querySelectorAll("[data-live][id]");
    // What the page came with, such as a chosen radio button, is not in use.
    const isChanged = (part) => [...part.querySelectorAll("input, option")].some((each) => each.matches("option")
        ? each.selected && each.index > 0 && !each.defaultSelected
        : each.checked !== each.defaultChecked);
    const inUse = () => [...parts()].some((part) =>
        part.contains(document.activeElement) || part.querySelector("details[open]:not([data-live-open])") || isChanged(part))
        || !window.getSelection().isCollapsed;

    const idOf = (row) => row.querySelector("input, a")?.matches("input") ? row.querySelector("input").value : row.querySelector("a")?.href;
    const replaceRows = (old, fresh) => {
        const body = old.querySelector("tbody"), freshBody = fresh.querySelector("tbody");
        if (body && freshBody && old.matches(":hover")) {
            const rows = new Map([...freshBody.rows].map((row) => [idOf(row), row]));
            for (const row of body.rows) {
                const now = rows.get(idOf(row));
                row.classList.toggle("pgjobs-gone", !now);
                if (now) row.replaceChildren(...now.children);
                rows.delete(idOf(row));
            }
            freshBody.replaceChildren(...body.cloneNode(true).rows, ...rows.values());
            const counter = fresh.querySelector("[data-actions-icnt]");
            if (counter) counter.dataset.actionsIcnt = freshBody.rows.length;
        }
        old.replaceChildren(...document.adoptNode(fresh).childNodes);
        const boxes = old.querySelectorAll("tr input.action-select");
        if (boxes.length && window.Actions) window.Actions(boxes); // Django's script knows the nodes that it found
    };
    const replace = (text) => {
        const page = new DOMParser().parseFromString(text, "text/html");
        for (const part of parts()) {
            const fresh = page.getElementById(part.id);
            if (!fresh) continue;
            if (part.dataset.live === "cells") replaceRows(part, fresh);
            else if (part.innerHTML !== fresh.innerHTML) part.replaceChildren(...document.adoptNode(fresh).childNodes);
        }
    };
    const refresh = async () => {
        if (!on || busy || document.hidden || inUse()) return;
        busy = true;
        try {
            const headers = tag ? {"If-None-Match": tag} : {};
            const answer = await fetch(window.location.href, {headers, credentials: "same-origin", cache: "no-store", redirect: "error"});
            if (answer.status !== 304) {
                if (!answer.ok) throw new Error(answer.status);
                tag = answer.headers.get("ETag");
                const text = await answer.text();
                if (!inUse()) replace(text);
            }
            last = new Date();
            late.textContent = "";
            document.dispatchEvent(new CustomEvent("pgjobs:live"));
        } catch {
            late.textContent = `${words.late} ${last.toLocaleTimeString()}`;
        } finally {
            busy = false;
        }
    };
    button.addEventListener("click", () => {
        on = !on;
        show();
        refresh();
    });
    document.addEventListener("visibilitychange", refresh);
    setInterval(refresh, SECONDS * 1000);
    show();
})();
