/* Offers to copy the text of each element with data-copy, which names the button. */
"use strict";
(() => {
    const offer = () => {
        for (const part of document.querySelectorAll("[data-copy]")) {
            if (part.querySelector(":scope > .pgjobs-copy")) continue;
            const button = document.createElement("button");
            const said = document.createElement("span");
            button.type = "button";
            button.className = "pgjobs-copy pgjobs-textbutton";
            button.textContent = part.dataset.copy;
            said.setAttribute("role", "status");
            button.addEventListener("click", async () => {
                const text = [...part.querySelectorAll("tr, :scope > pre")]
                    .map((row) => row.matches("pre") ? row.textContent : [...row.children].map((cell) => cell.textContent).join(": "));
                await navigator.clipboard.writeText(text.join("\n"));
                said.textContent = ` ${part.dataset.copied}`;
            });
            part.append(button, said);
        }
    };
    if (navigator.clipboard) {
        offer();
        document.addEventListener("pgjobs:live", offer);
    }
})();
