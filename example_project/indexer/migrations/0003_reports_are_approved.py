from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("library", "0002_an_edition_is_a_flow"),
    ]

    operations = [
        migrations.AddField(
            model_name="edition",
            name="approved_at",
            field=models.DateTimeField(help_text="Until then the report may be taken back.", null=True),
        ),
        migrations.AlterField(
            model_name="edition",
            name="published_at",
            field=models.DateTimeField(help_text="Since when the page shows the report.", null=True),
        ),
    ]
