/* Keeps parts of a page current: each 5 seconds it reads the page again and replaces what has data-live and an id.
   A part with data-live="cells" is a list with checkboxes: only the cells of rows that are still there change.
   It rests while the page is hidden, something is open, ticked or focused in a part, or somebody has paused it. */
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
    const inUse = () => [...parts()].some((part) =>
        part.contains(document.activeElement) || part.querySelector("details[open]:not([data-live-open]), input:checked"))
        || !window.getSelection().isCollapsed;

    const replaceCells = (old, fresh) => {
        const rows = new Map([...fresh.querySelectorAll("tbody tr")].map((row) => [row.querySelector("input")?.value, row]));
        for (const row of old.querySelectorAll("tbody tr")) {
            const now = rows.get(row.querySelector("input")?.value);
            row.classList.toggle("pgjobs-gone", !now);
            if (!now) continue;
            const cells = [...now.children];
            [...row.children].forEach((cell, at) => {
                if (!cell.querySelector("input") && cells[at] && cell.innerHTML !== cells[at].innerHTML) {
                    cell.replaceChildren(...cells[at].cloneNode(true).childNodes);
                }
            });
        }
    };
    const replace = (text) => {
        const page = new DOMParser().parseFromString(text, "text/html");
        for (const part of parts()) {
            const fresh = page.getElementById(part.id);
            if (!fresh) continue;
            if (part.dataset.live === "cells") replaceCells(part, fresh);
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
